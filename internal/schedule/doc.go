// Package schedule decides which host takes a new VM. It is a pipeline of
// gates in a fixed order, each in a file of its own and each able to say what
// it refused and by how much; a policy picks among the hosts that pass them
// all. It is pure: equal input gives an equal answer, whatever the order of
// the hosts.
package schedule
