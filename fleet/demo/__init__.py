"""What ``fleet demo`` runs: ``shop`` is the application, ``play`` is what happens to it."""
