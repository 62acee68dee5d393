"""Real processes, real servers and real faults; a journal of what happened; a checker that knows only the promises."""
