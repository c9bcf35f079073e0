package secrets

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// GuestServerName is the DNS name in every guest's certificate. The
// certificate itself is pinned, so the name tells nobody apart.
const GuestServerName = "fused"

const (
	certBackdate = 24 * time.Hour // a guest's clock may be behind
	certLife     = 10 * 365 * 24 * time.Hour
	maxCN        = 64 // X.520
)

// VMCredentials make one guest different from the next: its bearer token (64
// hex digits), its TLS pair and its machine id (32 hex digits).
type VMCredentials struct {
	Token     string
	CertPEM   []byte
	KeyPEM    []byte
	MachineID string
}

// String keeps the credentials out of logs.
func (VMCredentials) String() string { return "[REDACTED]" }

// GoString keeps the credentials out of %#v.
func (c VMCredentials) GoString() string { return c.String() }

// NewVMCredentials makes fresh credentials. The TLS pair is ECDSA P-256 and
// self-signed; vmID is the certificate's common name, cut to 64 characters.
func NewVMCredentials(vmID string) (VMCredentials, error) {
	random := make([]byte, 32+16)
	if _, err := rand.Read(random); err != nil {
		return VMCredentials{}, fmt.Errorf("make guest credentials: %w", err)
	}
	c := VMCredentials{Token: hex.EncodeToString(random[:32]), MachineID: hex.EncodeToString(random[32:])}
	var err error
	if c.CertPEM, c.KeyPEM, err = newPair(vmID); err != nil {
		return VMCredentials{}, fmt.Errorf("make guest certificate: %w", err)
	}
	return c, nil
}

func newPair(vmID string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	der, err := selfSign(key, serial.Add(serial, big.NewInt(1)), vmID[:min(len(vmID), maxCN)])
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	// The certificate is kept with the environment: without room to grow.
	certPEM = bytes.Clone(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return certPEM, keyPEM, nil
}
