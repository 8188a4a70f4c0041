"""The example that ``fleet demo`` runs: ``shop`` is the application, ``play`` what happens to it."""
