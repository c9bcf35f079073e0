package hostwire

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
)

// certLife is how long a host's certificate is valid. It is pinned by its
// fingerprint, so its end would only cut the host off.
const certLife = 20 * 365 * 24 * time.Hour

// LoadOrCreateCert returns the certificate kept in dir, making a self-signed
// one at the first call.
func LoadOrCreateCert(dir string) (tls.Certificate, error) {
	certPath, keyPath := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return cert, wrapCert(err, dir)
	}
	certPEM, keyPEM, err := selfSigned()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	// The key goes first, and each appears whole: a certificate without its key,
	// or half of one, would keep the host from starting for ever.
	if err == nil {
		err = durable.WriteFile(keyPath, keyPEM)
	}
	if err == nil {
		err = durable.WriteFile(certPath, certPEM)
	}
	if err != nil {
		return tls.Certificate{}, wrapCert(err, dir)
	}
	cert, err = tls.X509KeyPair(certPEM, keyPEM)
	return cert, wrapCert(err, dir)
}

func wrapCert(err error, dir string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("certificate in %s: %w", dir, err)
}

func selfSigned() (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "fuse host agent"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(certLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"fuse-hostd"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// Fingerprint is the SHA-256 of a certificate, in hex, as a host prints it
// and a registration takes it.
func Fingerprint(cert tls.Certificate) string {
	if len(cert.Certificate) == 0 {
		return ""
	}
	sum := sha256.Sum256(cert.Certificate[0])
	return hex.EncodeToString(sum[:])
}

// pinned accepts exactly the certificate with the given fingerprint, whatever
// its names and dates; colons and case in it do not matter.
func pinned(fingerprint string) (*tls.Config, error) {
	want, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(fingerprint), ":", ""))
	if err != nil || len(want) != sha256.Size {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the certificate fingerprint is not a SHA-256 in hex").
			With(fleet.DetailRemedy, "take the fingerprint that the host agent prints when it starts")
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // the pin below replaces names and chains
		VerifyConnection: func(cs tls.ConnectionState) error {
			sum := sha256.Sum256(cs.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(sum[:], want) != 1 {
				return otherCert(hex.EncodeToString(sum[:]), hex.EncodeToString(want))
			}
			return nil
		},
	}, nil
}

// otherCert names both certificates: who reads it can compare them with what
// the host agent prints.
func otherCert(shown, want string) error {
	return fleet.Errorf(fleet.CodeUnavailable, "the host shows the certificate %s; it is registered with %s", shown, want).
		With(fleet.DetailReason, fleet.ReasonCertificate).With(fleet.DetailShown, shown).
		With(fleet.DetailRemedy, "if fuse hostd prints the first of the two on that host, accept it with 'fuse host repin'; if not, something else answers at its address")
}

// strangeCert is the refusal of a certificate that was not named and that
// nobody vouches for.
func strangeCert(err *tls.CertificateVerificationError) *fleet.Error {
	shown := "none"
	if len(err.UnverifiedCertificates) > 0 {
		sum := sha256.Sum256(err.UnverifiedCertificates[0].Raw)
		shown = hex.EncodeToString(sum[:])
	}
	return fleet.Wrap(fleet.CodeUnavailable, err, "the host shows the certificate "+shown+", which this machine does not trust").
		With(fleet.DetailRemedy, "if fuse hostd prints that fingerprint on the host, register the host with it")
}
