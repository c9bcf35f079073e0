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
	return WriteEtc(etc, "", m.Config.Hostname, m.Config.MachineID, m.Config.Net.Nameservers)
}

// WriteEtc writes what makes a machine itself into the directory etc. Links in
// the way are replaced and never followed. A former name no longer resolves to
// it. Without nameservers the resolver's file stays as it is.
func WriteEtc(etc, former, hostname, machineID string, nameservers []string) error {
	if err := ensureDir(etc, 0o755); err != nil {
		return err
	}
	errs := []error{
		ensureDir(filepath.Join(etc, "fuse"), 0o755),
		PutFile(filepath.Join(etc, "hostname"), []byte(hostname+"\n"), 0o644),
		PutFile(filepath.Join(etc, "machine-id"), []byte(machineID+"\n"), 0o444),
		nameSelf(filepath.Join(etc, "hosts"), former, hostname),
	}
	if len(nameservers) > 0 {
		errs = append(errs, PutFile(filepath.Join(etc, "resolv.conf"), resolvConf(nameservers), 0o644))
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

// selfLine is how a machine's own name resolves.
func selfLine(hostname string) []byte { return []byte("127.0.1.1\t" + hostname + "\n") }

// nameSelf makes the machine's own name resolve, and a former one no longer. A
// hosts file that is a link is replaced, since it may lead anywhere.
func nameSelf(path, former, hostname string) error {
	old := []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	info, err := os.Lstat(path)
	if err == nil && info.Mode().IsRegular() && info.Size() < 1<<20 {
		if old, err = os.ReadFile(path); err != nil {
			return err
		}
	}
	if former != "" && former != hostname {
		old = bytes.ReplaceAll(old, selfLine(former), nil)
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
	return PutFile(path, append(old, selfLine(hostname)...), 0o644)
}

// PutFile gives a file its content where it lies, which costs the kernel a tenth
// of a new one. What is no file of root's own by this one name is replaced. It is
// for files that nothing reads or changes meanwhile.
func PutFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600); err == nil {
			_, err = f.Write(data)
			return errors.Join(err, f.Chmod(mode), f.Close())
		}
	}
	if err != nil {
		return ReplaceFile(path, data, mode)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode() != mode || st.Nlink != 1 || int(st.Uid) != os.Geteuid() {
		return errors.Join(f.Close(), ReplaceFile(path, data, mode))
	}
	_, err = f.Write(data)
	if err == nil && info.Size() > int64(len(data)) {
		err = f.Truncate(int64(len(data)))
	}
	return errors.Join(err, f.Close())
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
