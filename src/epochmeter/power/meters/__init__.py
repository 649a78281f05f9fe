"""Energy meters, one per file: NVML, amdgpu, RAPL, Jetson rails, jtop, an estimate, a recording and sums of meters."""
