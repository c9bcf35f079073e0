// Package fleet is the vocabulary of Fuse: the nouns every other package
// speaks (Spec, VM, Host, Task, Snapshot, DeadLetter, Event, Observation),
// their legal states, and the closed set of error codes. It imports only the
// standard library, holds no behaviour that needs a clock, and does no I/O.
package fleet
