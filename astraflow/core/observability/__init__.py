"""What a run leaves and how its processes are seen and held together."""
