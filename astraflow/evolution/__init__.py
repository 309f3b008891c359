"""Evolution: what agents did becomes measured improvements of their skills."""
