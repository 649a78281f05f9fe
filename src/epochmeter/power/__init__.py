"""What a stretch of training costs in joules: meters count, and a window's energy is a subtraction."""
