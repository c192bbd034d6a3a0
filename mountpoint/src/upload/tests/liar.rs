//! A store that returns false answers.

use super::*;
use crate::buffer::{BlockMut, Fill};
use crate::s3::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    PutChecksum,
    PartChecksum,
    PartSize,
    CompleteChecksum,
}

#[derive(Debug)]
struct Liar(MemoryClient, Lie);

const OTHER: Checksum = Checksum { algorithm: ChecksumAlgorithm::Crc32c, value: 1 };

impl ObjectClient for Liar {
    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, Result<Stored>> {
        Box::pin(async {
            let stored = self.0.put_object(request).await?;
            Ok(Stored { checksum: Some(OTHER.to_base64()), ..stored })
        })
    }

    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, Result<UploadedPart>> {
        Box::pin(async {
            let mut stored = self.0.upload_part(request).await?;
            match self.1 {
                Lie::PartChecksum => stored.checksum = Some(OTHER),
                Lie::PartSize => stored.size -= 1,
                _ => {}
            }
            Ok(stored)
        })
    }

    fn complete_multipart_upload<'a>(&'a self, request: &'a CompleteUpload) -> BoxFuture<'a, Result<Stored>> {
        Box::pin(async {
            let stored = self.0.complete_multipart_upload(request).await?;
            Ok(Stored { checksum: Some(format!("{}-2", OTHER.to_base64())), ..stored })
        })
    }

    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, Result<UploadId>> {
        self.0.create_multipart_upload(request)
    }

    passed_on!();
}

#[tokio::test]
async fn false_answers_are_corrupt_and_nothing_is_visible_before_complete() {
    for (lie, len) in [
        (Lie::PutChecksum, PART),
        (Lie::PartChecksum, 2 * PART),
        (Lie::PartSize, 2 * PART),
        (Lie::CompleteChecksum, 2 * PART),
    ] {
        let way = |client: &MemoryClient| Arc::new(Liar(client.clone(), lie)) as Arc<dyn ObjectClient>;
        let bench = Bench::through(small_parts(), Clock::machine(), way);
        let upload = bench.create("a");
        assert!(
            matches!(store(&upload, &data(len, 0), PART).await, Err(crate::upload::Error::Corrupt)),
            "{lie:?}"
        );
        upload.abort().await;
        let told_before = matches!(lie, Lie::PartChecksum | Lie::PartSize);
        assert_eq!(bench.client.object("a").is_none(), told_before, "{lie:?}");
        assert_eq!(bench.client.calls(Op::AbortMultipartUpload), usize::from(told_before));
        bench.assert_clean();
    }
}
