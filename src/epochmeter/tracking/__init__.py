"""Records shown in MLflow. The record is the truth and MLflow its index: it can be rebuilt at any time."""
