"""Health of the try-out's S3 server: the bucket is there, made when it is not. Exit code 0 when it can be used."""

import os

import boto3

client = boto3.client(
    "s3",
    endpoint_url="http://127.0.0.1:8333",
    region_name="us-east-1",
    aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
    aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
)
if "dawn" not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
    client.create_bucket(Bucket="dawn")
