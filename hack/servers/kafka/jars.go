package kafka

import _ "embed"

// pom lists the artifacts of Apache Kafka, and jars the files that they come to, with checksums.
var (
	//go:embed pom.xml
	pom []byte
	//go:embed jars.sha256
	jars string
)
