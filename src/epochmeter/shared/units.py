"""Units and names that the controller and the training process share."""

NANOSECOND = 1e-9  # in seconds
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Extensions of image files, in lower case."""
