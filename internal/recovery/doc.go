// Package recovery decides, when a control plane takes over a state that it
// did not write itself, what becomes of each row. It is an ordered rule table:
// the first rule that applies decides, and each says why it is there. A host
// that could not be looked at never costs a VM its life.
package recovery
