"""Publish run folders to MLflow. The run folder is the source of truth; MLflow can be rebuilt from it at any time."""
