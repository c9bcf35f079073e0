package secrets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// template is a certificate of a guest but for what differs between guests.
func template(serial *big.Int, commonName string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		DNSNames:              []string{GuestServerName},
		NotBefore:             now.Add(-certBackdate),
		NotAfter:              now.Add(certLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
}

// fixed is what all certificates have in common, in DER, as crypto/x509
// writes it: the version, the signature's algorithm and the extensions.
type fixed struct{ version, algorithm, extensions []byte }

// common takes it from one certificate that crypto/x509 has made.
var common = sync.OnceValues(func() (f fixed, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	t := template(big.NewInt(1), "fuse")
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return f, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return f, err
	}
	in := cryptobyte.String(cert.RawTBSCertificate)
	var tbs, version, algorithm, skipped cryptobyte.String
	context := func(n uint8) casn1.Tag { return casn1.Tag(n).Constructed().ContextSpecific() }
	if !in.ReadASN1(&tbs, casn1.SEQUENCE) || !tbs.ReadASN1Element(&version, context(0)) ||
		!tbs.ReadASN1Element(&skipped, casn1.INTEGER) || !tbs.ReadASN1Element(&algorithm, casn1.SEQUENCE) ||
		!tbs.ReadASN1Element(&skipped, casn1.SEQUENCE) || !tbs.ReadASN1Element(&skipped, casn1.SEQUENCE) ||
		!tbs.ReadASN1Element(&skipped, casn1.SEQUENCE) || !tbs.ReadASN1Element(&skipped, casn1.SEQUENCE) || tbs.Empty() {
		return f, errors.New("a certificate of crypto/x509 cannot be taken apart")
	}
	return fixed{version, algorithm, tbs}, nil
})

// selfSign makes the certificate that crypto/x509 would make of template, at a
// quarter of the cost, most of which is there for checking its own signature:
// every create waits for one.
func selfSign(key *ecdsa.PrivateKey, serial *big.Int, commonName string) ([]byte, error) {
	f, err := common()
	if err != nil {
		return nil, err
	}
	t := template(serial, commonName)
	name, err := asn1.Marshal(t.Subject.ToRDNSequence())
	if err != nil {
		return nil, fmt.Errorf("encode name: %w", err)
	}
	validity, err := asn1.Marshal(struct{ NotBefore, NotAfter time.Time }{t.NotBefore.UTC(), t.NotAfter.UTC()})
	if err != nil {
		return nil, fmt.Errorf("encode validity: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(f.version)
		b.AddASN1BigInt(serial)
		for _, part := range [][]byte{f.algorithm, name, validity, name, public, f.extensions} {
			b.AddBytes(part)
		}
	})
	tbs, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode certificate: %w", err)
	}
	digest := sha256.Sum256(tbs)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	var out cryptobyte.Builder
	out.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		b.AddBytes(f.algorithm)
		b.AddASN1BitString(signature)
	})
	return out.Bytes()
}
