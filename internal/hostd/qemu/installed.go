package qemu

// Installed is an error, with the remedy, when this host has no QEMU for its
// own architecture.
func Installed() error {
	m, err := hostMachine()
	if err != nil {
		return err
	}
	_, err = (&prober{machine: m}).program()
	return err
}
