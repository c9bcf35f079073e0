//go:build !amd64

package tsc

const available = false

func read() uint64 { return 0 }
