"""The samples are read by checkers and never imported: some are wrong on purpose."""

collect_ignore = ["samples"]
