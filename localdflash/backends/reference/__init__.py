"""Reference backend in torch: readable float32 modules that define what every other backend computes."""
