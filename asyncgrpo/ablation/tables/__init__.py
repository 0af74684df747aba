"""What runs leave behind: a study's folder, and the two tables that every reported figure comes from."""
