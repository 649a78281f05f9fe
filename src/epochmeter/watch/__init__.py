"""The live view of a run or a sweep: reads run folders only, so it cannot disturb a measurement."""
