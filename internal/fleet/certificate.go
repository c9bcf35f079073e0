package fleet

import "slices"

// Names of what a certificate tells of, in the order in which it is renewed.
const (
	RenewedGeneration = "generation"
	RenewedRNG        = "kernel_rng"
	RenewedClock      = "clock"
	RenewedNetwork    = "network"
	RenewedHostname   = "hostname"
	RenewedMachineID  = "machine_id"
	RenewedSeed       = "random_seed"
	RenewedSSHKeys    = "ssh_host_keys"
	RenewedFiles      = "files"
	RenewedToken      = "token"
	RenewedTLSKey     = "tls_key"
	RenewedProcesses  = "processes" // that were told
)

// CertificateNames are what every certificate tells of. What a continuation of
// the same machine keeps is told, too.
var CertificateNames = []string{
	RenewedGeneration, RenewedRNG, RenewedClock, RenewedNetwork, RenewedHostname, RenewedMachineID,
	RenewedSeed, RenewedSSHKeys, RenewedFiles, RenewedToken, RenewedTLSKey, RenewedProcesses,
}

// Lacks lists what the certificate should tell of and does not, and what it
// tells of twice. A machine whose certificate lacks anything is not ready.
func (c Certificate) Lacks() []string {
	var out []string
	count := map[string]int{}
	for _, r := range c.Renewed {
		count[r.Name]++
	}
	if c.Generation == "" {
		count[RenewedGeneration] = 0
	}
	for _, name := range CertificateNames {
		if count[name] != 1 {
			out = append(out, name)
		}
	}
	if !slices.Contains([]string{ThawFork, ThawRestore, ThawResume, ThawGolden}, c.Cause) {
		out = append(out, "cause")
	}
	return out
}
