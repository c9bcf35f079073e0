// Package model is Playguard's vocabulary: marquees (Docker hosts reached over
// SSH), playgrounds (Compose environments on them), their states, actions,
// failures, budgets and names. It holds values and total functions only; it
// reads no clock, and it knows nothing of VMs.
package model
