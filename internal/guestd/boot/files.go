package boot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/guestd/rotated"
)

// openFiles is how many files a process of the guest may have open: more than
// the kernel's own default for its first process, which suits no server.
var openFiles = unix.Rlimit{Cur: 65536, Max: 1 << 20}

// writeFiles gives the machine its name, id, resolver and credentials. What an
// image does not let us write in its /etc is reported and does no harm.
func (m *Machine) writeFiles(ctx context.Context) error {
	syscall.Umask(0o022)
	limit := syscall.Rlimit{Cur: openFiles.Cur, Max: openFiles.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	// The host's Ctrl-Alt-Del becomes a signal to us instead of a reset.
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF); err != nil {
		return fmt.Errorf("take over ctrl-alt-del: %w", err)
	}
	if err := unix.Sethostname([]byte(m.Config.Hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	m.findRotated("/etc/fuse")
	if err := m.writeCredentials("/fuse"); err != nil {
		return err
	}
	if err := m.writeEtc("/etc"); err != nil {
		m.log.WarnContext(ctx, "not all of /etc could be written", "error", err)
	}
	return nil
}

// findRotated looks whether the token was rotated before a reboot, which must
// not bring a dead token back.
func (m *Machine) findRotated(dir string) {
	if hash, ok := rotated.Read(dir, m.Config.Token); ok {
		m.Rotated = &hash
	}
}

// writeCredentials writes the machine's token and certificate where the
// existing guest agent keeps them.
func (m *Machine) writeCredentials(dir string) error {
	if err := ensureDir(filepath.Join(dir, "tls"), 0o700); err != nil {
		return err
	}
	for name, data := range map[string]string{
		"auth-token": m.Config.Token, "tls/cert.pem": m.Config.CertPEM, "tls/key.pem": m.Config.KeyPEM,
	} {
		if m.Rotated != nil {
			break // the host tells the living ones
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) writeEtc(etc string) error {
	return WriteEtc(etc, m.Config.Hostname, m.Config.MachineID, m.Config.Net.Nameservers)
}

// WriteEtc writes what makes a machine itself into the directory etc. Links in
// the way are replaced and never followed. Without nameservers the resolver's
// file stays as it is.
func WriteEtc(etc, hostname, machineID string, nameservers []string) error {
	if err := ensureDir(etc, 0o755); err != nil {
		return err
	}
	errs := []error{
		ensureDir(filepath.Join(etc, "fuse"), 0o755),
		ReplaceFile(filepath.Join(etc, "hostname"), []byte(hostname+"\n"), 0o644),
		ReplaceFile(filepath.Join(etc, "machine-id"), []byte(machineID+"\n"), 0o444),
		nameSelf(filepath.Join(etc, "hosts"), hostname),
	}
	if len(nameservers) > 0 {
		errs = append(errs, ReplaceFile(filepath.Join(etc, "resolv.conf"), resolvConf(nameservers), 0o644))
	}
	return errors.Join(errs...)
}

func resolvConf(nameservers []string) []byte {
	var b bytes.Buffer
	for _, ns := range nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", ns)
	}
	return b.Bytes()
}

// nameSelf makes the machine's own name resolve. A hosts file that is a link
// is replaced, since it may lead anywhere.
func nameSelf(path, hostname string) error {
	old := []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	info, err := os.Lstat(path)
	if err == nil && info.Mode().IsRegular() && info.Size() < 1<<20 {
		if old, err = os.ReadFile(path); err != nil {
			return err
		}
	}
	for line := range strings.Lines(string(old)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 && slices.Contains(f[1:], hostname) {
			return nil
		}
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		old = append(old, '\n')
	}
	return ReplaceFile(path, append(old, "127.0.1.1\t"+hostname+"\n"...), 0o644)
}

// ReplaceFile puts a file in place of whatever path is, links included, and
// follows none.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp := filepath.Join(filepath.Dir(path), ".fuse-"+rand.Text())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
