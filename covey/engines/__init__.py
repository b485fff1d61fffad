"""Where the processes are and how bytes travel."""
