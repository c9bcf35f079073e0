package tsc

// available says that this architecture has the counter.
const available = true

// read is the counter's value.
func read() uint64
