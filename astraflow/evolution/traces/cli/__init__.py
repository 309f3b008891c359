"""The `traj` command."""
