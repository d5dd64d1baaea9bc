"""What clusters find in their project, or in the emulator: images, orphans, prices, weather."""
