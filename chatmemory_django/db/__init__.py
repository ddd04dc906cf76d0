"""What every part of the app needs of a database: retries, threads, moments and batches."""
