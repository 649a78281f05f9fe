"""No package: Ray imports it in each of its processes, and ends if the driver's library is missing."""

raise ImportError("no amdsmi")
