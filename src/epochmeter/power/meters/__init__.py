"""Energy meters: NVML, amdgpu, RAPL and an estimate, Jetson rails, jtop, and sums of meters."""
