-- What people tell the fleet: pause, resume, set, purge, and cancel and revive in bulk. fleet.log is in 0004.
--
-- Each writes its own line of fleet.log in its own transaction: there is no line for what was rolled back,
-- and nothing done without one.
--
-- What is done in bulk is done in batches, each a call: a call looks at no more than at_most rows, so that it
-- locks no more, and says in "last" where it got to; null: that was all. The next call is given
-- above => last, and entry => entry, so that one operation is one line, which counts on.

revoke execute on all functions in schema fleet from public;
