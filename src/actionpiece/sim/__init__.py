"""Robot simulators: tasks and scripted demonstrators. Needs `pip install 'actionpiece[sim]'`; never imports torch."""
