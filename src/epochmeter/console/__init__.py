"""What is printed while runs go on and when they end."""
