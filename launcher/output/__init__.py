"""What a run leaves and shows: its folder, events, logs and the screen; secrets are taken out here."""
