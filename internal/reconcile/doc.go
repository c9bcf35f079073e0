// Package reconcile compares what the state says with what the hosts say and
// decides what to do about the difference. It is the only thing that destroys
// machines nobody asked to destroy, so every step carries its evidence, and
// what could not be seen changes nothing.
//
// Plan is pure: rows, observations and the memory of earlier cycles in; steps,
// new memory and a summary out. The loop in package converge applies the steps
// and asks Step.Holds again right before each.
package reconcile
