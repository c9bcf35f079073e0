// Package evacuation empties hosts: each environment of a host that is being
// drained is moved if that can be done, otherwise its services are stopped, and
// it is ended after a grace; whatever is left is ended at the deadline. What is
// under way lies in the host's row, so a process that takes over goes on where
// the one before stopped, and a cancel counts from its commit on.
package evacuation
