"""Robot simulators: tasks and scripted demonstrators. Needs the extra `sim`; never imports torch."""
