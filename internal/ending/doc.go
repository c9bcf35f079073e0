// Package ending ends environments in the state: the intent with its reason,
// the end of the task, and what is kept of a life once its row is gone. Whoever
// ends one, for whatever reason, goes through here, inside a transaction of its
// own. Nothing here talks to a host.
package ending
