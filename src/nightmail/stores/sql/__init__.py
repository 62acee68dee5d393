"""What the SQL stores share. Each store's own directory holds its SQL, its driver and its differences."""
