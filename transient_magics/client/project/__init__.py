"""Resources of a project or of the emulator: images, orphans, prices, measurements, weather."""
