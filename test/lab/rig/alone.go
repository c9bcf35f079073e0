package rig

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// Alone stands for a test where there is none: a person who keeps a lab up. Its
// failures end the process, after Close.
type Alone struct {
	testing.TB // what is not below is not used by a lab

	mu     sync.Mutex
	ends   []func()
	failed bool
}

// Helper does nothing.
func (a *Alone) Helper() {}

// Name is in messages.
func (a *Alone) Name() string { return "lab" }

// Context ends with the process.
func (a *Alone) Context() context.Context { return context.Background() }

// Cleanup has f called by Close, the last one first.
func (a *Alone) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends = append(a.ends, f)
}

// Close ends what was built and returns whether all went well.
func (a *Alone) Close() bool {
	a.mu.Lock()
	ends := a.ends
	a.ends = nil
	a.mu.Unlock()
	for _, f := range slices.Backward(ends) {
		f()
	}
	return !a.Failed()
}

// Failed reports whether something went wrong.
func (a *Alone) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// Logf prints.
func (a *Alone) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Errorf prints and remembers.
func (a *Alone) Errorf(format string, args ...any) {
	a.mu.Lock()
	a.failed = true
	a.mu.Unlock()
	a.Logf(format, args...)
}

// Error is Errorf without a format.
func (a *Alone) Error(args ...any) { a.Errorf("%s", fmt.Sprint(args...)) }

// Fatalf ends the process.
func (a *Alone) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	a.Close()
	os.Exit(1)
}

// Fatal is Fatalf without a format.
func (a *Alone) Fatal(args ...any) { a.Fatalf("%s", fmt.Sprint(args...)) }
