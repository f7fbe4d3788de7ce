"""Search sessions: any knobs, on anything that can be set and loaded, each setting against the baseline beside it."""
