// Package converge runs the loop that keeps the state and the hosts together:
// recovery when the process takes over, then one cycle at once and one on
// every tick of a fixed clock. A cycle looks at all hosts side by side, plans
// on each answer as it comes (package reconcile), and applies the steps beside
// the loop, each checked once more against the state right before it acts.
//
// A host that is down or slow costs the others nothing, and its own machines
// are left as they are.
package converge
