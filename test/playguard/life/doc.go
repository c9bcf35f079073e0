// Package life takes one playground through its whole life, on a real SSH
// server and Docker daemon: what people ask for, through the service, the loop
// and the runner.
package life
