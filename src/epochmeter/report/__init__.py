"""What runs tell when they are put side by side: read from their records, which stay as they are."""
