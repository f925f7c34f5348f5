"""What scripts that measure and tests share: engines that say what they are told, and terminals."""
