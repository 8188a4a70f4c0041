"""The example that ``fleet demo`` runs: ``shop`` is the application, ``play`` the story."""
